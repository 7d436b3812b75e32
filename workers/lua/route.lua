-- route.lua - admitted requests go from their streams to queues of pools; the streams forget them.
--
-- Each one wholly or not at all, whatever becomes of the others.
--
-- KEYS[1] active
-- ARGV[5] group   ARGV[6] requests_per_min   ARGV[7] tokens_per_min
-- ARGV[8] ... of each: class of its stream, entry id, request id, pool, tenant, tokens at most,
--   what is counted of its plan, width, and that many arguments: fields of the job's hash
-- returns of each "routed", "waits" (for its session: another request holds it), "duplicate" (id
-- known: its first request stands), "not-mine" (another's), or ms until its tenant may ask for it:
-- it stays
--
-- One that the HTTP door accepted was charged there; one whose id is known will not run.
-- include names
-- include rq_job
-- include session
-- include rate
-- include job_list
local group, per_min, tokens_per_min = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local placements, i = {}, 8

-- What its tenant is charged: {ms until it may be, tokens}
local function charged_tokens(stream, entry, id, tenant, most)
  if per_min == 0 and tokens_per_min == 0 then return { 0, 0 } end
  if redis.call('HEXISTS', job_key(id), 'status') == 1 then return { 0, 0 } end
  if #redis.call('XPENDING', stream, group, entry, entry, 1) == 0 then return { 0, 0 } end
  return charge(tenant, per_min, tokens_per_min, most)
end

-- Into its queue, or behind its session's other requests.
local function queue(id, pool, session)
  if session then
    if holder_of(session) or pass_session_on(session) then
      wait_for_session(session, id)
      return 'waits'
    end
    hold_session(session, id)
  end
  rq_push(id, pool, 'workers.jobs.generate', id)
  return 'routed'
end

local function route(sla, entry, id, pool, tenant, most, first, width)
  local stream, job = P .. ':requests:' .. sla, job_key(id)
  local charged = charged_tokens(stream, entry, id, tenant, most)
  if charged[1] > 0 then return charged[1] end
  if redis.call('XACK', stream, group, entry) == 0 then return 'not-mine' end
  redis.call('XDEL', stream, entry)
  local known = redis.call('HMGET', job, 'status', 'entry')
  if known[1] and not (known[1] == 'accepted' and known[2] == entry) then return 'duplicate' end
  redis.call('HSET', job, 'status', 'queued', 'entry', entry, 'queued_ms', NOW_MS,
    'attempts', 0, 'pool', pool, unpack(ARGV, first, first + width - 1))
  if charged[2] > 0 then redis.call('HSET', job, 'charged_tokens', charged[2]) end
  if not known[1] then list_job(id, string.match(entry, '^%d+')) end
  redis.call('EXPIRE', job, KEEP_S)
  redis.call('ZADD', KEYS[1], NOW_MS, id)
  local asked = redis.call('HMGET', job, 'deadline_ms', 'session_id', 'tenant')
  if asked[1] then
    redis.call('ZADD', deadlines_key(), asked[1], id)
    redis.call('EXPIRE', deadlines_key(), KEEP_S)
  end
  return queue(id, pool, full_session(asked[2], asked[3]))
end

local told = {}
while i <= #ARGV do
  local width = tonumber(ARGV[i + 7])
  local outcome = route(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4],
    tonumber(ARGV[i + 5]), i + 8, width)
  if outcome == 'routed' or outcome == 'waits' then
    placements[ARGV[i + 6]] = (placements[ARGV[i + 6]] or 0) + 1
  end
  told[#told + 1] = outcome
  i = i + 8 + width
end
for kind, count in pairs(placements) do
  redis.pcall('HINCRBY', P .. ':placements', kind, count) -- for people: never in the way
end
redis.pcall('EXPIRE', P .. ':placements', KEEP_S)
redis.call('EXPIRE', KEYS[1], KEEP_S)
return told
