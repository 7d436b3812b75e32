-- reap.lua - items whose lease ran out, by the server's clock, are put back, or end as poison.
--
-- KEYS[1] RQ's registry of started jobs
-- ARGV[5] queue name   ARGV[6] max_attempts   ARGV[7] at most so many
-- returns the ids that were put back
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local items = {}
local late = redis.call(
  'ZRANGEBYSCORE', KEYS[1], '-inf', NOW_S + LEASE_SLACK_S, 'LIMIT', 0, tonumber(ARGV[7])
)
for _, member in ipairs(late) do items[#items + 1] = split(member) end
return put_back_all(ARGV[5], items, tonumber(ARGV[6]), false)
