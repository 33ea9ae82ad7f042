"""What every test folder shares."""
