-- cancel.lua - a client wants no more of a request.
--
-- KEYS[1] hash of the job   KEYS[2] channel of the pools
-- ARGV[5] request id   ARGV[6] "1": also of an id that nobody has seen: when it comes it is known
-- ARGV[7] ... the end event of a request that waits
-- returns "cancelled" (it waited), "cancelling" (it runs: its pool is told), "ended" or "unknown"
-- include names
-- include rq_job
-- include session
-- include end_request
local known = redis.call('HMGET', KEYS[1], 'status', 'pool')
if not known[1] then
  if ARGV[6] ~= '1' then return 'unknown' end
  redis.call('HSET', KEYS[1], 'status', 'accepted', 'arrival_ms', NOW_MS)
  list_job(ARGV[5], NOW_MS)
  end_request(ARGV[5], arguments(7), nil)
  return 'cancelled'
end
if TERMINAL[known[1]] then return 'ended' end
if known[1] == 'running' then
  redis.call('HSET', KEYS[1], 'cancel', 1)
  redis.call('PUBLISH', KEYS[2], 'cancel ' .. ARGV[5])
  return 'cancelling'
end
if known[2] then redis.call('LREM', queue_key(known[2]), 0, ARGV[5]) end
end_request(ARGV[5], arguments(7), nil)
return 'cancelled'
