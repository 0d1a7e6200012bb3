"""Records in, figures and one self-contained page out."""
