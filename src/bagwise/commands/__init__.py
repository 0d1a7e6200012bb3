"""What the commands of the command line do: files in, files out, a small result to print."""
