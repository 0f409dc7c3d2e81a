"""What agents use: tokens and money, what it adds up to, and how much may be spent."""
