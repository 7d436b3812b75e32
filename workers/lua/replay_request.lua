-- replay_request.lua - a dead request enters its stream again, under a new id: the old one ended.
--
-- KEYS[1] dead letters   KEYS[2] stream of the class
-- ARGV[5] entry id of the dead letter   ARGV[6] ... fields of the new entry, as pairs
-- returns 1, or 0 when the dead letter is gone (replayed already): nothing is added
-- include names
if redis.call('XDEL', KEYS[1], ARGV[5]) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(arguments(6)))
redis.call('EXPIRE', KEYS[2], KEEP_S)
return 1
