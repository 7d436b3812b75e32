-- route.lua - an admitted request goes from its stream to a pool's queue; the stream forgets it.
--
-- KEYS[1] stream of the class   KEYS[2] hash of the job   KEYS[3] RQ's hash of it   KEYS[4] queue
-- KEYS[5] active
-- ARGV[5] group   ARGV[6] entry id   ARGV[7] request id   ARGV[8] pool
-- ARGV[9] requests_per_min   ARGV[10] tokens_per_min   ARGV[11] tenant   ARGV[12] tokens at most
-- ARGV[13] ... fields of the job's hash
-- returns "routed", "waits" (for its session: another request holds it), "duplicate" (id known: its
-- first request stands), "not-mine" (another's), or ms until its tenant may ask for it: it stays
--
-- One that the HTTP door accepted was charged there; one whose id is known will not run.
-- include names
-- include rq_job
-- include session
-- include rate
-- include job_list
local function charged_tokens()
  local per_min, tokens_per_min = tonumber(ARGV[9]), tonumber(ARGV[10])
  if per_min == 0 and tokens_per_min == 0 then return { 0, 0 } end
  if redis.call('HEXISTS', KEYS[2], 'status') == 1 then return { 0, 0 } end
  if #redis.call('XPENDING', KEYS[1], ARGV[5], ARGV[6], ARGV[6], 1) == 0 then return { 0, 0 } end
  return charge(ARGV[11], per_min, tokens_per_min, tonumber(ARGV[12]))
end

local charged = charged_tokens()
if charged[1] > 0 then return charged[1] end
if redis.call('XACK', KEYS[1], ARGV[5], ARGV[6]) == 0 then return 'not-mine' end
redis.call('XDEL', KEYS[1], ARGV[6])
local known = redis.call('HMGET', KEYS[2], 'status', 'entry')
if known[1] and not (known[1] == 'accepted' and known[2] == ARGV[6]) then return 'duplicate' end
redis.call('HSET', KEYS[2], 'status', 'queued', 'entry', ARGV[6], 'queued_ms', NOW_MS,
  'attempts', 0, 'pool', ARGV[8], unpack(arguments(13)))
if charged[2] > 0 then redis.call('HSET', KEYS[2], 'charged_tokens', charged[2]) end
if not known[1] then list_job(ARGV[7], string.match(ARGV[6], '^%d+')) end
redis.call('EXPIRE', KEYS[2], KEEP_S)
redis.call('ZADD', KEYS[5], NOW_MS, ARGV[7])
redis.call('EXPIRE', KEYS[5], KEEP_S)
local deadline_ms = redis.call('HGET', KEYS[2], 'deadline_ms')
if deadline_ms then
  redis.call('ZADD', deadlines_key(), deadline_ms, ARGV[7])
  redis.call('EXPIRE', deadlines_key(), KEEP_S)
end
local session = session_of(ARGV[7])
if session then
  if holder_of(session) or pass_session_on(session) then
    wait_for_session(session, ARGV[7])
    return 'waits'
  end
  hold_session(session, ARGV[7])
end
rq_push(ARGV[7], ARGV[8], 'workers.jobs.generate', ARGV[7])
return 'routed'
