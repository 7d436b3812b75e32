-- hand_over.lua - a worker gives a request to the front of another pool's queue, no attempt burnt.
--
-- KEYS[1] hash of the job
-- ARGV[5] queue name   ARGV[6] max_attempts   ARGV[7] request id   ARGV[8] execution
-- ARGV[9] the other pool
-- returns 1 when it is so (also when it was so already); 0: the lease was lost, or it ended instead
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local queue, id, execution, target = ARGV[5], ARGV[7], ARGV[8], ARGV[9]
if not drop_lease(queue, id, execution) then
  local known = redis.call('HMGET', KEYS[1], 'status', 'pool', 'execution')
  return (known[1] == 'queued' and known[2] == target and known[3] == execution) and 1 or 0
end
if redis.call('HGET', KEYS[1], 'status') ~= 'running' then return 0 end
redis.call('HSET', KEYS[1], 'pool', target, 'moved_ms', NOW_MS)
redis.call('HINCRBY', KEYS[1], 'moves', 1)
local reason = redis.call('HGET', KEYS[1], 'move_reason')
redis.call('HSET', KEYS[1], 'reason', reason or target .. ': handed over by ' .. queue)
redis.call('HDEL', KEYS[1], 'move_reason', 'then_pool')
redis.call('HSET', rq_key(id), 'origin', target)
if not put_back(target, id, tonumber(ARGV[6]), true) then return 0 end
redis.call('SADD', RQ .. ':queues', queue_key(target)) -- it may be the first there
ring(target)
return 1
