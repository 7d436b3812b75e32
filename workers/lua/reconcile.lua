-- reconcile.lua - no request is forgotten: one that is neither in its queue nor leased is put back.
--
-- Our own scripts cannot cause that; a stock RQ worker, `rq empty`, Job.cancel and Job.delete do.
--
-- KEYS[1] active
-- ARGV[5] max_attempts   ARGV[6] "1": look even when the numbers agree
-- ARGV[7] ... the pools' queue names
-- returns the ids that were put back
-- include names
-- include rq_job
-- include end_request
-- include lease
local pools, waiting, seen, ids = arguments(7), {}, 0, {}
for _, pool in ipairs(pools) do
  seen = seen + redis.call('LLEN', queue_key(pool)) + redis.call('ZCARD', wip_key(pool))
end
if ARGV[6] ~= '1' and redis.call('ZCARD', KEYS[1]) <= seen then return ids end
for _, pool in ipairs(pools) do
  for _, id in ipairs(redis.call('LRANGE', queue_key(pool), 0, -1)) do waiting[id] = true end
end

local function look(id)
  local known = redis.call('HMGET', job_key(id), 'status', 'pool', 'execution')
  local status, pool = known[1], known[2]
  if not status or TERMINAL[status] then return redis.call('ZREM', KEYS[1], id) end
  if status == 'queued' and waiting[id] then return end
  if status == 'running' and has_lease(pool, id, known[3]) then return end
  if redis.call('HGET', rq_key(id), 'status') == 'canceled' then
    return end_as(id, 'cancelled', 'cancelled by the client')
  end
  if status == 'queued' then -- as if just claimed and handed back
    redis.call('HSET', job_key(id), 'status', 'running')
    redis.call('HINCRBY', job_key(id), 'attempts', 1)
  end
  if put_back(pool, id, tonumber(ARGV[5]), status == 'queued') then ids[#ids + 1] = id end
  ring(pool)
end

local active = redis.call('ZREVRANGE', KEYS[1], 0, -1)
for _, id in ipairs(active) do look(id) end
return ids
