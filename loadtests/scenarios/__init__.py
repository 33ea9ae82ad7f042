"""Who the users are: one module for each scenario, whose `USERS` Locust is to make."""

from typing import Final

SCENARIOS: Final = ("order_service", "flash_sale", "retry_storm", "operators")
