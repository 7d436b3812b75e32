-- claim.lua - a worker takes up to `room` items: popped, leased and marked running in one step.
--
-- KEYS[1] queue   KEYS[2] RQ's suspension flag
-- ARGV[5] queue name   ARGV[6] worker   ARGV[7] room   ARGV[8] lease_s   ARGV[9] max_attempts
-- ARGV[10] "1": the worker runs nothing
-- ARGV[11] JSON, class to number: so many more of that class, which displace less urgent ones
-- ARGV[12] the weights and arithmetic of the worker, or ""
-- ARGV[13] ... execution ids, enough for all of these
-- returns {id, execution, request, attempts, fence, class, then_pool, first, weights} of each:
-- request and class "" for webhooks, fence 0 for what belongs to no session, then_pool "" for what
-- stays in its pool, first 1 for a request that nobody has claimed before, weights those by which
-- its tokens were made
--
-- A session's request is taken only as the session's holder; its fence is higher than all before.
-- What ended while it waited is skipped; what expired ends here. A pool of other weights than its
-- fleet's takes nothing: the others do. An item whose worker died twice
-- without one new token between runs alone, so that what kills its worker takes no other along.
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local SUSPECT = 2
local OF_REQUEST =
  { 'request', 'sla', 'then_pool', 'webhook_events', 'session_id', 'tenant', 'weights' }
local queue, worker, room, lease_s = ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local max_attempts, idle = tonumber(ARGV[9]), ARGV[10] == '1'
local is_pool, extra = queue ~= 'webhooks', cjson.decode(ARGV[11])
local taken, alone = {}, false

-- The next item; when there is no room left, the next one that another makes way for.
local LOOK = 64
local function next_item()
  if #taken < room then return redis.call('LPOP', KEYS[1]) end
  if next(extra) == nil then return nil end
  for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, LOOK - 1)) do
    local sla = redis.call('HGET', record_key(queue, id), 'sla')
    if sla and (extra[sla] or 0) > #taken - room then
      redis.call('LREM', KEYS[1], 1, id)
      return id
    end
  end
end

-- An id in the queue that does not wait: RQ's record, if somebody changed it, is set right.
local function pass_over(id, status)
  if not is_pool or status == 'running' then return end
  if status then return rq_end(id, RQ_STATUS[status]) end
  if redis.call('EXISTS', rq_key(id)) == 1 then rq_end(id, 'failed') end
end

-- True when the item ended instead of being taken.
local function ends(id, known, attempts)
  if known[4] then
    end_as(id, 'cancelled', 'cancelled by the client')
  elseif known[3] and tonumber(known[3]) <= NOW_MS then
    end_as(id, 'expired', 'deadline_ms: passed while it waited')
  elseif attempts >= max_attempts then
    end_poison(queue, id, attempts)
  else
    return false
  end
  return true
end

-- True when another request holds the session after all: this one waits for it.
local function must_wait(id, session)
  local holder = session and holder_of(session)
  if not holder or holder == id then return false end
  wait_for_session(session, id, true)
  return true
end

-- Those by which its tokens were made; as long as there are none, the worker's own.
local function weights_of(id, known)
  if known and redis.call('EXISTS', tokens_key(id)) == 1 then return known end
  if ARGV[12] ~= '' then redis.call('HSET', job_key(id), 'weights', ARGV[12]) end
  return ARGV[12]
end

local function take_session(session, id)
  local key = session_key(session)
  hold_session(session, id)
  redis.call('HSET', key, 'pool', queue, 'home', worker, 'used_ms', NOW_MS)
  local fence = redis.call('HGET', key, 'fence')
  if fence and not (string.match(fence, '^%d+$') and #fence < 16) then
    redis.call('HDEL', key, 'fence') -- the files know the highest that was taken
  end
  return redis.call('HINCRBY', key, 'fence', 1)
end

-- Whether the nodes that take part in its fleet have other weights, or another arithmetic.
local function is_stranger()
  if ARGV[12] == '' or not is_pool or not string.find(queue, '@', 1, true) then return false end
  local fleet = redis.call('HMGET', P .. ':fleet', 'identity', 'heard_s')
  local weights, arithmetic = string.match(fleet[1] or '', '([^:]*):[^:]*:([^:]*)$')
  local lives = tonumber(fleet[2] or 0) > NOW_S - lease_s
  return weights and lives and weights .. ':' .. arithmetic ~= ARGV[12]
end

if redis.call('EXISTS', KEYS[2]) == 1 or is_stranger() then return {} end
while not alone do
  local id = next_item()
  if not id then break end
  local record = record_key(queue, id)
  local known =
    redis.call('HMGET', record, 'status', 'attempts', 'deadline_ms', 'cancel', unpack(OF_REQUEST))
  local attempts = tonumber(known[2] or 0)
  local session = is_pool and full_session(known[9], known[10])
  if known[1] ~= 'queued' then
    pass_over(id, known[1])
  elseif not ends(id, known, attempts) and not must_wait(id, session) then
    alone = is_pool and attempts >= SUSPECT
    if alone and not (idle and #taken == 0) then
      redis.call('LPUSH', KEYS[1], id)
      redis.call('EXPIRE', KEYS[1], KEEP_S)
      break
    end
    local execution = ARGV[13 + #taken]
    local first, weights = 0, ''
    if is_pool then
      weights = weights_of(id, known[11])
      first = redis.call('HSETNX', record, 'started_ms', NOW_MS)
      if first == 1 and known[8] and known[8] ~= '' then queue_webhook(id, 'started') end
      redis.call('EXPIRE', record, KEEP_S)
    end
    redis.call('HSET', record, 'status', is_pool and 'running' or 'started',
      'attempts', attempts + 1, 'execution', execution, 'worker', worker)
    take_lease(queue, worker, id, execution, lease_s)
    local fence = session and take_session(session, id) or 0
    local sla, then_pool = known[6] or '', known[7] or ''
    taken[#taken + 1] =
      { id, execution, known[5] or '', attempts + 1, fence, sla, then_pool, first, weights }
  end
end
if #taken > 0 and redis.call('LLEN', KEYS[1]) > 0 then ring(queue) end
return taken
