-- lease.lua - who works on what: a lease is a member ID:EXECUTION of RQ's registry of started jobs.
-- Needs names.lua, rq_job.lua, session.lua, end_request.lua.
--
-- The lease ends at score - LEASE_SLACK_S, by the server's clock. RQ's own cleanup (any `rq info`
-- runs it, by its caller's clock, and it would burn a retry) looks at the score itself, so it comes
-- an hour after our reaping.
local LEASE_SLACK_S = 3600

-- The hash that says whether an item waits: of webhooks RQ's own, which is all they have.
local function record_key(queue, id)
  if queue == 'webhooks' then return rq_key(id) end
  return job_key(id)
end

local function wip_key(queue) return RQ .. ':wip:' .. queue end

-- The caller writes execution and worker into the record.
local function take_lease(queue, worker, id, execution, lease_s)
  local member, score = id .. ':' .. execution, NOW_S + lease_s + LEASE_SLACK_S
  local keep_s = math.ceil(lease_s + LEASE_SLACK_S)
  local mine = RQ .. ':worker:' .. worker .. ':executions'
  redis.call('ZADD', wip_key(queue), score, member)
  keep(wip_key(queue))
  redis.call('HSET', RQ .. ':execution:' .. member, 'id', execution, 'job_id', id,
    'created_at', NOW_S, 'last_heartbeat', NOW_S, 'worker_name', worker)
  redis.call('EXPIRE', RQ .. ':execution:' .. member, keep_s)
  redis.call('ZADD', RQ .. ':executions:' .. id, score + 60, execution)
  redis.call('EXPIRE', RQ .. ':executions:' .. id, keep_s + 60)
  redis.call('SADD', mine, member)
  keep(mine, keep_s)
  local now = rq_now()
  redis.call('HSET', rq_key(id), 'status', 'started', 'worker_name', worker,
    'started_at', now, 'last_heartbeat', now)
end

-- Renew: nothing when the lease is lost.
local function renew_lease(queue, id, execution, lease_s)
  local member, score = id .. ':' .. execution, NOW_S + lease_s + LEASE_SLACK_S
  local keep_s = math.ceil(lease_s + LEASE_SLACK_S)
  redis.call('ZADD', wip_key(queue), 'XX', score, member)
  redis.call('HSET', RQ .. ':execution:' .. member, 'last_heartbeat', NOW_S)
  redis.call('EXPIRE', RQ .. ':execution:' .. member, keep_s)
  redis.call('ZADD', RQ .. ':executions:' .. id, 'XX', score + 60, execution)
  redis.call('EXPIRE', RQ .. ':executions:' .. id, keep_s + 60)
end

local function has_lease(queue, id, execution)
  if not execution then return false end
  return redis.call('ZSCORE', wip_key(queue), id .. ':' .. execution) and true or false
end

-- The fence: true when the lease was ours, and then it is gone.   worker: nil: it is looked up
local function drop_lease(queue, id, execution, worker)
  local member = id .. ':' .. execution
  if redis.call('ZREM', wip_key(queue), member) == 0 then return false end
  worker = worker or redis.call('HGET', RQ .. ':execution:' .. member, 'worker_name')
  redis.call('DEL', RQ .. ':execution:' .. member)
  redis.call('ZREM', RQ .. ':executions:' .. id, execution)
  if worker then redis.call('SREM', RQ .. ':worker:' .. worker .. ':executions', member) end
  return true
end

-- It was delivered too often without moving: it ends, with a record of why.
local function end_poison(queue, id, attempts)
  local reason = 'its worker died ' .. attempts .. ' times while running it'
  if queue == 'webhooks' then
    webhook_dead(string.match(id, '^wh%-(.+)%-%d+$') or id, reason, 'poison', '')
    return rq_end(id, 'failed')
  end
  local known = redis.call('HMGET', job_key(id), 'tenant', 'sla', 'entry', 'request')
  dead_letter('kind', 'request', 'id', id, 'tenant', known[1] or '',
    'sla', known[2] or '', 'entry', known[3] or '', 'reason', reason, 'code', 'poison',
    'request', known[4] or '')
  end_request(id, { 'status', 'failed', 'text', '', 'error', reason, 'code', 'poison' })
end

-- An item whose lease is gone goes to the front of its queue, or ends; nothing if it does not run.
local function put_back(queue, id, max_attempts, unburnt)
  local record = record_key(queue, id)
  local known = redis.call('HMGET', record, 'status', 'attempts', 'cancel')
  if known[1] ~= 'running' and known[1] ~= 'started' then return false end
  local attempts = tonumber(known[2] or 0)
  if known[3] then
    end_as(id, 'cancelled', 'cancelled by the client')
    return false
  end
  if unburnt then
    redis.call('HSET', record, 'attempts', math.max(attempts - 1, 0))
  elseif attempts >= max_attempts then
    end_poison(queue, id, attempts)
    return false
  end
  redis.call('HSET', record, 'status', 'queued')
  redis.call('HDEL', record, 'move_reason') -- that wish was of whoever had it
  if redis.call('HEXISTS', rq_key(id), 'data') == 0 then
    rq_create(id, queue, 'workers.jobs.generate', id)
  end
  redis.call('HSET', rq_key(id), 'status', 'queued', 'worker_name', '')
  redis.call('LPUSH', queue_key(queue), id)
  redis.call('EXPIRE', queue_key(queue), KEEP_S)
  return true
end

-- Items {id, execution} whose leases we may take: first come stays first. Gives the ids put back.
local function put_back_all(queue, items, max_attempts, unburnt)
  local order, ids = {}, {}
  for _, item in ipairs(items) do
    if drop_lease(queue, item[1], item[2]) then
      local since = redis.call('HGET', record_key(queue, item[1]), 'queued_ms')
      order[#order + 1] = { tonumber(since or 0), item[1] }
    end
  end
  table.sort(order, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[2] > b[2]) end)
  for _, item in ipairs(order) do
    if put_back(queue, item[2], max_attempts, unburnt) then ids[#ids + 1] = item[2] end
  end
  if #ids > 0 then ring(queue) end
  return ids
end

-- "ID:EXECUTION" to {id, execution}
local function split(member)
  local id, execution = string.match(member, '^(.+):([^:]+)$')
  return { id, execution }
end
