-- compose.lua - the prompt of a session's request is known: it stands in the job from now on.
--
-- KEYS[1] hash of the job
-- ARGV[5] request id   ARGV[6] execution   ARGV[7] request, msgpack   ARGV[8] prompt_tokens
-- ARGV[9] forked_at, or ""
-- returns 1, or 0 when the lease is lost: nothing is written
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local pool = redis.call('HGET', KEYS[1], 'pool')
if not pool or not has_lease(pool, ARGV[5], ARGV[6]) then return 0 end
redis.call('HSET', KEYS[1], 'request', ARGV[7], 'prompt_tokens', ARGV[8])
if ARGV[9] == '' then
  redis.call('HDEL', KEYS[1], 'forked_at')
else
  redis.call('HSET', KEYS[1], 'forked_at', ARGV[9])
end
return 1
