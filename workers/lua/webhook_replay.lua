-- webhook_replay.lua - a dead webhook is tried anew, with its old id and a fresh schedule.
--
-- KEYS[1] dead letters   KEYS[2] state of the webhook
-- ARGV[5] entry id   ARGV[6] request id   ARGV[7] url   ARGV[8] secret id   ARGV[9] end status
-- ARGV[10] attempts so far   ARGV[11] body
-- returns "queued", "unknown" (no such dead letter any more) or the state that forbids it
-- include names
-- include rq_job
-- include session
-- include end_request
if #redis.call('XRANGE', KEYS[1], ARGV[5], ARGV[5]) == 0 then return 'unknown' end
local state = redis.call('HGET', KEYS[2], 'state')
if state and state ~= 'dead' then return state end
redis.call('HSET', KEYS[2], 'url', ARGV[7], 'secret_id', ARGV[8], 'status', ARGV[9],
  'state', 'pending', 'attempts', ARGV[10], 'failures', 0, 'body', ARGV[11])
redis.call('EXPIRE', KEYS[2], KEEP_S)
redis.call('EXPIRE', job_key(ARGV[6]), KEEP_S)
queue_attempt(ARGV[6], tonumber(ARGV[10]) + 1)
redis.call('XDEL', KEYS[1], ARGV[5])
return 'queued'
