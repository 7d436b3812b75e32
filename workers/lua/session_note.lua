-- session_note.lua - what a pool says of a session.
--
-- KEYS[1] hash of the session
-- ARGV[5] the session's full id   ARGV[6] ... fields and values
-- include names
-- include rq_job
-- include session
redis.call('HSET', session_key(ARGV[5]), unpack(arguments(6)))
keep_session(ARGV[5])
