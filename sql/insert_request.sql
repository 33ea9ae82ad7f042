-- Remembers that an operator's request number was used, and for what.
-- Primary key; a second use is refused.
INSERT INTO inventory_request (tenant, request_no, inventory_key, kind, fingerprint, epoch, seq)
VALUES (%s, %s, %s, %s, %s, %s, %s)
