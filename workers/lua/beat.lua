-- beat.lua - a living worker renews its leases and hears what became of them.
--
-- KEYS[1] RQ's hash of the worker
-- ARGV[5] queue name   ARGV[6] worker   ARGV[7] lease_s   ARGV[8] worker_ttl_s
-- ARGV[9] ... id, execution of each
-- returns {lost ids, cancelled ids, 1 when RQ knows the worker, {id, class} of all others}
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local queue, lease_s, lost, cancelled, classes = ARGV[5], tonumber(ARGV[7]), {}, {}, {}

-- Lost to RQ's Job.cancel, which only takes the lease away: the request ends here.
local function lost_to_rq(id, execution)
  if queue == 'webhooks' then return false end
  local known = redis.call('HMGET', job_key(id), 'status', 'execution')
  return known[1] == 'running' and known[2] == execution
    and redis.call('HGET', rq_key(id), 'status') == 'canceled'
end

local known = redis.call('HEXISTS', KEYS[1], 'birth')
if known == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[8]) -- first: allowed with memory full, and so is the rest then
  redis.call('HSET', KEYS[1], 'last_heartbeat', rq_now())
end
for i = 9, #ARGV, 2 do
  local id, execution = ARGV[i], ARGV[i + 1]
  if has_lease(queue, id, execution) then
    renew_lease(queue, id, execution, lease_s)
    local job = redis.call('HMGET', job_key(id), 'cancel', 'sla')
    if job[1] then
      cancelled[#cancelled + 1] = id
    elseif job[2] then
      classes[#classes + 1] = id
      classes[#classes + 1] = job[2]
    end
  else
    lost[#lost + 1] = id
    if lost_to_rq(id, execution) then end_as(id, 'cancelled', 'cancelled by the client') end
  end
end
if #ARGV > 8 then
  local mine = RQ .. ':worker:' .. ARGV[6] .. ':executions'
  redis.call('EXPIRE', mine, math.ceil(lease_s + LEASE_SLACK_S))
end
return { lost, cancelled, known, classes }
