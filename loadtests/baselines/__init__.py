"""What Stockgate is compared with: servers that a careful team might write first. Never used by the product."""
