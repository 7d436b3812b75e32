-- webhook_due.lua - attempts whose time has come go from the sorted set to RQ's queue, one RQ job each.
--
-- KEYS[1] webhooks that wait, by due ms   KEYS[2] queue
-- ARGV[5] how many at most
-- returns {how many went, ms until the next one is due or -1}
-- include names
-- include rq_job
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', NOW_MS, 'LIMIT', 0, tonumber(ARGV[5]))
for _, id in ipairs(due) do
  redis.call('ZREM', KEYS[1], id)
  local webhook = redis.call('HMGET', P .. ':webhook:' .. id, 'state', 'attempts')
  if webhook[1] == 'pending' then
    rq_push('wh-' .. id .. '-' .. (tonumber(webhook[2]) + 1), 'webhooks', 'workers.jobs.deliver', id)
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if not first[1] then return { #due, -1 } end
return { #due, math.max(0, math.ceil(tonumber(first[2]) - NOW_MS)) }
