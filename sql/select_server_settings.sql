-- Reads the settings that promises rest on, the server's and this session's, and the clock (UTC epoch ms).
-- Reads no table and takes no lock; what the two servers name differently stands in their own comments.
SELECT VERSION(), @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog, @@GLOBAL.binlog_format,
    @@GLOBAL.max_allowed_packet, @@GLOBAL.read_only, @@SESSION.sql_mode, @@SESSION.time_zone,
    @@SESSION.innodb_lock_wait_timeout, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) AS now_ms
    /*!80000 , @@SESSION.transaction_isolation, 0 */ /*M!100100 , @@SESSION.tx_isolation, @@GLOBAL.wsrep_on */
