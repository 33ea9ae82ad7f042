"""Hundreds of people want one thing of which there is too little: all of it is sold, none twice, and a no is quick."""

from locust import between, task

from loadtests.users import PLAN, OrderCaller


class Hunter(OrderCaller):
    """Takes one piece and pays at once, again and again; after the sale is over it goes on asking."""

    wait_time = between(0.8, 1.6)

    @task
    def buy(self) -> None:
        """One piece, held and paid."""
        book = self.reserve({PLAN.inventory_keys[0]: 1})
        if book is not None:
            self.move(book, "confirm", {})


USERS = (Hunter,)
