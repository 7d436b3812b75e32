-- session_forget.lua - a session's files are deleted on purpose: nobody misses them.
--
-- KEYS[1] hash of the session   KEYS[2] its token log
-- ARGV[5] the session's full id   ARGV[6] fence of what is deleted, or -1: whatever it is
-- ARGV[7] ... fields that say what is in its files
-- returns 1; 0: a later commit stands, of another node
-- include names
-- include rq_job
-- include session
local session, fence = ARGV[5], tonumber(ARGV[6])
if fence >= 0 and session_number(session, 'committed') > fence then return 0 end
redis.call('HDEL', session_key(session), unpack(arguments(7)))
redis.call('DEL', KEYS[2])
session_number(session, 'fence')
local dropped = redis.call('HINCRBY', session_key(session), 'fence', 1)
redis.call('HSET', session_key(session), 'dropped', dropped)
keep_session(session)
return 1
