-- rq_job.lua - RQ's record of a job (rq 3.0: rq/job.py restore). Needs names.lua.

-- Now, as RQ writes dates: 2026-11-30T01:02:03.000004Z (civil_from_days,
-- howardhinnant.github.io/date_algorithms).
local function rq_now()
  local z, rest = math.floor(SECONDS / 86400) + 719468, SECONDS % 86400
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local leap = math.floor(doe / 1460) - math.floor(doe / 36524) + math.floor(doe / 146096)
  local yoe = math.floor((doe - leap) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  local hours, minutes = math.floor(rest / 3600), math.floor(rest % 3600 / 60)
  local date = string.format('%04d-%02d-%02d', year, month, day)
  return date .. string.format('T%02d:%02d:%02d.%06dZ', hours, minutes, rest % 60, MICROS)
end

-- msgpack of [func, nil, [argument], {}], as RQ's serializer reads it; it need not be compressed.
local function rq_data(func, argument)
  local packed = '\148\217' .. string.char(#func) .. func
  return packed .. '\192\145\217' .. string.char(#argument) .. argument .. '\128'
end

local LISTED = {} -- queues that this script has told RQ of

-- Write the record of a queued job. retries_left: RQ's own cleanup, should it ever see our lease
-- expired, puts the job back instead of failing it.
local function rq_create(id, queue, func, argument)
  local now = rq_now()
  redis.call('HSET', rq_key(id), 'status', 'queued', 'origin', queue,
    'data', rq_data(func, argument), 'description', func .. "('" .. argument .. "')",
    'created_at', now, 'enqueued_at', now, 'timeout', -1,
    'result_ttl', RESULT_TTL_S, 'failure_ttl', RESULT_TTL_S, 'retries_left', 1000000)
  redis.call('EXPIRE', rq_key(id), KEEP_S)
  if not LISTED[queue] then redis.call('SADD', RQ .. ':queues', queue_key(queue)) end
  LISTED[queue] = true
  keep(RQ .. ':queues')
end

-- Into a queue in order of rank (workers/sla.py), the smallest in front; of equals the last one is
-- behind.
-- What has no rank, as webhooks have none, goes to the back, and nobody passes it.
local QUEUE_LOOK = 256 -- from the back: more never wait in a pool's queue
local function rq_insert(queue, id)
  local key, rank = queue_key(queue), tonumber(redis.call('HGET', job_key(id), 'rank') or nil)
  local next_one = nil
  for i = -1, -QUEUE_LOOK, -1 do
    local other = rank and redis.call('LINDEX', key, i)
    if not other then break end
    local known = redis.call('HGET', job_key(other), 'rank')
    if not known or tonumber(known) <= rank then break end
    next_one = other
  end
  if not next_one then
    redis.call('RPUSH', key, id)
  else
    redis.call('LINSERT', key, 'BEFORE', next_one, id)
  end
  redis.call('EXPIRE', key, KEEP_S)
end

local function rq_push(id, queue, func, argument)
  rq_create(id, queue, func, argument)
  rq_insert(queue, id)
  ring(queue)
end

-- The record ends: status in RQ's words, and the registry of that name.
local function rq_end(id, status)
  local queue = redis.call('HGET', rq_key(id), 'origin')
  if not queue then return end
  redis.call('HSET', rq_key(id), 'status', status, 'ended_at', rq_now())
  redis.call('EXPIRE', rq_key(id), RESULT_TTL_S)
  redis.call('ZADD', RQ .. ':' .. status .. ':' .. queue, SECONDS + RESULT_TTL_S, id)
  keep(RQ .. ':' .. status .. ':' .. queue, math.max(KEEP_S, RESULT_TTL_S))
end
