-- expire_late.lua - what waits in a queue or for its session ends when its deadline has passed.
--
-- What runs is its engine's business: that ends it, too.
--
-- KEYS[1] ids by their deadlines
-- returns the ids that ended
-- include names
-- include rq_job
-- include session
-- include end_request
local AT_MOST, ids = 1000, {}
local late = redis.call('ZRANGEBYSCORE', deadlines_key(), '-inf', NOW_MS, 'LIMIT', 0, AT_MOST)
for _, id in ipairs(late) do
  local known = redis.call('HMGET', job_key(id), 'status', 'pool')
  if not known[1] or TERMINAL[known[1]] then
    redis.call('ZREM', deadlines_key(), id)
  elseif known[1] == 'queued' then
    local session = session_of(id)
    local waits = session and redis.call('LPOS', session_list(session), id)
    if known[2] then redis.call('LREM', queue_key(known[2]), 0, id) end
    local where = waits and ' for its session' or ''
    end_as(id, 'expired', 'deadline_ms: passed while it waited' .. where)
    ids[#ids + 1] = id
  end
end
return ids
