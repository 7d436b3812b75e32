-- route.lua - an admitted request goes from its stream to a pool's queue; the stream forgets it.
--
-- KEYS[1] stream of the class   KEYS[2] hash of the job   KEYS[3] RQ's hash of it   KEYS[4] queue
-- KEYS[5] active
-- ARGV[5] group   ARGV[6] entry id   ARGV[7] request id   ARGV[8] pool
-- ARGV[9] ... fields of the job's hash
-- returns "routed", "waits" (for its session: another request holds it), "duplicate" (id known: its
-- first request stands) or "not-mine" (another's)
-- include names
-- include rq_job
-- include session
if redis.call('XACK', KEYS[1], ARGV[5], ARGV[6]) == 0 then return 'not-mine' end
redis.call('XDEL', KEYS[1], ARGV[6])
local known = redis.call('HMGET', KEYS[2], 'status', 'entry')
if known[1] and not (known[1] == 'accepted' and known[2] == ARGV[6]) then return 'duplicate' end
redis.call('HSET', KEYS[2], 'status', 'queued', 'entry', ARGV[6], 'queued_ms', NOW_MS,
  'attempts', 0, 'pool', ARGV[8], unpack(arguments(9)))
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
