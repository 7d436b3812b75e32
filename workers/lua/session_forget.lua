-- session_forget.lua - a session's files are deleted on purpose: nobody misses them.
--
-- KEYS[1] hash of the session
-- ARGV[5] the session's full id   ARGV[6] ... fields that say what is in its files
-- include names
-- include rq_job
-- include session
redis.call('HDEL', session_key(ARGV[5]), unpack(arguments(6)))
