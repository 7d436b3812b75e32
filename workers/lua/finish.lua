-- finish.lua - a request ends in its pool's hands: end entry, status, RQ's records, webhook.
--
-- KEYS[1] hash of the job   KEYS[2] RQ's hash of the worker
-- ARGV[5] queue name   ARGV[6] worker   ARGV[7] request id   ARGV[8] execution
-- ARGV[9] RQ's result, encoded   ARGV[10] the whole text   ARGV[11] ... the end event
-- returns 1 when it is so (also when it was so already); 0: the lease was lost, nothing is written
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local id, execution = ARGV[7], ARGV[8]
local known = redis.call('HMGET', KEYS[1], 'status', 'execution', 'started_ms', 'cached_tokens')
if not drop_lease(ARGV[5], id, execution) then
  return (TERMINAL[known[1]] and known[2] == execution) and 1 or 0
end
local flat, noted = arguments(11), tonumber(known[4] or '')
for i = 1, #flat, 2 do -- what an earlier owner computed was not there before
  if flat[i] == 'cached_tokens' and noted then flat[i + 1] = math.min(flat[i + 1], noted) end
end
end_request(id, flat, ARGV[10])
local good = ARGV[12] == 'finished'
redis.call('XADD', RQ .. ':results:' .. id, 'MAXLEN', 10, '*', 'type', good and 1 or 2,
  'worker_name', ARGV[6], 'return_value', ARGV[9], 'execution_id', execution,
  'execution_ended_at', NOW_S)
redis.call('EXPIRE', RQ .. ':results:' .. id, RESULT_TTL_S)
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('HINCRBY', KEYS[2], good and 'successful_job_count' or 'failed_job_count', 1)
  local worked_ms = NOW_MS - tonumber(known[3] or NOW_MS)
  redis.call('HINCRBYFLOAT', KEYS[2], 'total_working_time', worked_ms / 1000)
end
return 1
