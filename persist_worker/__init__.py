"""The process that takes events from RabbitMQ and makes them rows in MySQL.

Imports `inventory` and below; never touches Redis.
"""
