-- Finds which of some request numbers were used; a tenant and a list of request numbers.
-- Primary key, one row per request; no lock.
SELECT tenant, request_no
FROM inventory_request
WHERE tenant = %s AND request_no IN %s
