"""The leaderboard: every contender on the same bags with the same budget of network passes."""
