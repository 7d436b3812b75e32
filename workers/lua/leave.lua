-- leave.lua - a node of a fleet stops on purpose: the others need not wait for its lease.
--
-- KEYS[1] nodes by when they were heard   KEYS[2] their speeds   KEYS[3] what it said of itself
-- KEYS[4] tokens of the longest sequence each holds
-- ARGV[5] name   ARGV[6] instance
-- include names
if redis.call('HGET', KEYS[3], 'instance') == ARGV[6] then
  redis.call('ZADD', KEYS[1], 'XX', 0, ARGV[5])
  redis.call('ZREM', KEYS[2], ARGV[5])
  redis.call('ZREM', KEYS[4], ARGV[5])
  redis.call('HSET', KEYS[3], 'heard_s', 0)
end
