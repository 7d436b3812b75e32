-- reconcile.lua - no request is forgotten: one that is neither in its queue nor leased is put back.
--
-- Our own scripts cannot cause that; a stock RQ worker, `rq empty`, Job.cancel and Job.delete do.
-- One that waits for its session waits for a request that is there, else it is let in.
--
-- KEYS[1] active
-- ARGV[5] max_attempts   ARGV[6] "1": look even when the numbers agree
-- ARGV[7] ... the pools' queue names
-- returns the ids that were put back
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local pools, waiting, seen, ids = arguments(7), {}, 0, {}
local free = {} -- sessions that nobody holds, and somebody waits for
for _, pool in ipairs(pools) do
  seen = seen + redis.call('LLEN', queue_key(pool)) + redis.call('ZCARD', wip_key(pool))
end
seen = seen + redis.call('ZCARD', waiting_key())
if ARGV[6] ~= '1' and redis.call('ZCARD', KEYS[1]) <= seen then return ids end

-- Whether it is in the queue that its hash names, also in one of a node that was not asked about.
local function waits(pool, id)
  if not waiting[pool] then
    waiting[pool] = {}
    for _, other in ipairs(redis.call('LRANGE', queue_key(pool), 0, -1)) do
      waiting[pool][other] = true
    end
  end
  return waiting[pool][id]
end

-- True when the request waits for its session, or has expired meanwhile. The one routed last comes
-- first: a list that was lost is made again in its order, front to back.
local function looked_after(id, session, deadline_ms)
  local holder, list = holder_of(session), session_list(session)
  if holder == id then return false end
  if deadline_ms and tonumber(deadline_ms) <= NOW_MS then
    end_as(id, 'expired', 'deadline_ms: passed while it waited for its session')
    return true
  end
  if not redis.call('LPOS', list, id) then wait_for_session(session, id, true) end
  redis.call('ZADD', waiting_key(), 'NX', NOW_MS, id)
  if holder then -- so that it is looked at, too
    redis.call('ZADD', KEYS[1], 'NX', NOW_MS, holder)
  else
    free[session] = true
  end
  return true
end

local function look(id)
  local known = redis.call('HMGET', job_key(id), 'status', 'pool', 'execution', 'deadline_ms')
  local status, pool = known[1], known[2]
  if not status or TERMINAL[status] then return redis.call('ZREM', KEYS[1], id) end
  if status == 'queued' and (waits(pool, id) or LET_IN[id]) then return end
  if status == 'running' and has_lease(pool, id, known[3]) then return end
  local session = status == 'queued' and session_of(id)
  if session and looked_after(id, session, known[4]) then return end
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
for session in pairs(free) do
  if not holder_of(session) then ids[#ids + 1] = pass_session_on(session) end
end
for _, id in ipairs(redis.call('ZRANGE', waiting_key(), 0, -1)) do
  local session = session_of(id)
  if not session or not redis.call('LPOS', session_list(session), id) then
    redis.call('ZREM', waiting_key(), id)
  end
end
return ids
