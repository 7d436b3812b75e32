-- webhook_end.lua - one attempt is over: delivered, to be repeated, put off or dead; fenced.
--
-- KEYS[1] state of the webhook   KEYS[2] webhooks that wait, by due ms
-- ARGV[5] request id   ARGV[6] RQ job id   ARGV[7] execution
-- ARGV[8] "delivered", "retry", "defer" (was not tried: does not count) or "dead"
-- ARGV[9] ms until the next one, of retry and defer   ARGV[10] HTTP status or ""
-- ARGV[11] error   ARGV[12] body
-- returns the webhook's state, or "lost": the lease is somebody else's and nothing was changed
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local id, job_id, verdict = ARGV[5], ARGV[6], ARGV[8]
if not drop_lease('webhooks', job_id, ARGV[7]) then return 'lost' end

local function wait(ms)
  local due = NOW_MS + tonumber(ms)
  redis.call('ZADD', KEYS[2], due, id)
  redis.call('EXPIRE', KEYS[2], KEEP_S)
  redis.call('HSET', KEYS[1], 'next_at', due)
  redis.call('EXPIRE', KEYS[1], KEEP_S)
  redis.call('EXPIRE', job_key(id), KEEP_S)
end

if redis.call('HGET', KEYS[1], 'state') ~= 'pending' then
  rq_end(job_id, 'canceled')
  return redis.call('HGET', KEYS[1], 'state') or 'gone'
end
if verdict == 'defer' then
  redis.call('DEL', rq_key(job_id))
  wait(ARGV[9])
  return 'pending'
end
redis.call('HINCRBY', KEYS[1], 'attempts', 1)
redis.call('HSET', KEYS[1], 'last_status', ARGV[10], 'last_error', ARGV[11], 'last_ms', NOW_MS)
rq_end(job_id, verdict == 'delivered' and 'finished' or 'failed')
if verdict == 'delivered' then
  redis.call('HSET', KEYS[1], 'state', 'delivered')
  redis.call('HDEL', KEYS[1], 'next_at', 'body')
  redis.call('ZREM', KEYS[2], id)
  redis.call('EXPIRE', KEYS[1], RESULT_TTL_S)
  keep_result(id)
elseif verdict == 'retry' then
  redis.call('HINCRBY', KEYS[1], 'failures', 1)
  wait(ARGV[9])
else
  webhook_dead(id, ARGV[11], 'webhook', ARGV[12])
end
return redis.call('HGET', KEYS[1], 'state')
