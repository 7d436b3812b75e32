-- webhook_due.lua - attempts whose time has come go to RQ's queue, one RQ job each.
--
-- KEYS[1] webhooks that wait, by due ms   KEYS[2] queue
-- ARGV[5] how many at most
-- returns {how many were looked at, ms until the next look or -1}
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease

-- Whether an attempt's RQ job is where it should be; if not, it was lost to RQ's own commands.
local function is_under_way(job_id)
  local job = redis.call('HMGET', rq_key(job_id), 'status', 'execution')
  if job[1] == 'started' then return has_lease('webhooks', job_id, job[2]) end
  return job[1] == 'queued' and redis.call('LPOS', KEYS[2], job_id) and true or false
end

local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', NOW_MS, 'LIMIT', 0, tonumber(ARGV[5]))
for _, id in ipairs(due) do
  local key = P .. ':webhook:' .. id
  local webhook = redis.call('HMGET', key, 'state', 'attempts')
  local number = tonumber(webhook[2] or 0) + 1
  if webhook[1] ~= 'pending' then
    redis.call('ZREM', KEYS[1], id)
  elseif is_under_way('wh-' .. id .. '-' .. number) then
    redis.call('ZADD', KEYS[1], NOW_MS + WEBHOOK_LOOK_MS, id)
  else
    redis.call('HDEL', key, 'next_at')
    queue_attempt(id, number)
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if not first[1] then return { #due, -1 } end
return { #due, math.max(0, math.ceil(tonumber(first[2]) - NOW_MS)) }
