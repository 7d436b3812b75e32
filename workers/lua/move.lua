-- move.lua - somebody wants a request to be run by another pool.
--
-- KEYS[1] hash of the job   KEYS[2] channel of the pools
-- ARGV[5] request id   ARGV[6] the other pool, or a processor   ARGV[7] why, in words, or ""
-- ARGV[8] only from a queue of this node: @NAME, "@" of the one without a name; or ""
-- returns "moved" (it waited, or is there), "moving" (it runs: its pool is told), "ended" or
-- "unknown" (also of one that is not routed yet)
-- include names
-- include rq_job
-- include session
local id, target = ARGV[5], ARGV[6]
local known = redis.call('HMGET', KEYS[1], 'status', 'pool')
local status, pool = known[1], known[2]
if not status or status == 'accepted' then return 'unknown' end
if ARGV[8] == '' and not string.find(target, '@', 1, true) then -- of the node where it is
  target = target .. (string.match(pool or '', '@.*') or '')
end
local node = string.match(pool or '', '@.*') or '@'
if ARGV[8] ~= '' and (status ~= 'queued' or node ~= ARGV[8]) then
  return 'moved' -- by another one
end
if TERMINAL[status] then return 'ended' end
if pool == target then -- whatever was wished before is not wished any more
  redis.call('HDEL', KEYS[1], 'move_reason')
  if status == 'running' then redis.call('PUBLISH', KEYS[2], 'move ' .. id .. ' ' .. target) end
  return 'moved'
end
local reason = ARGV[7] ~= '' and ARGV[7] or target .. ': moved from ' .. pool
if status == 'running' then
  redis.call('HSET', KEYS[1], 'move_reason', reason)
  redis.call('PUBLISH', KEYS[2], 'move ' .. id .. ' ' .. target)
  return 'moving'
end
redis.call('HDEL', KEYS[1], 'move_reason')
local then_pool = redis.call('HGET', KEYS[1], 'then_pool') or ''
if string.match(then_pool, '@.*') ~= string.match(target, '@.*') then
  redis.call('HDEL', KEYS[1], 'then_pool') -- of the node that it leaves
end
local was_queued = redis.call('LREM', queue_key(pool), 0, id) > 0
redis.call('HSET', KEYS[1], 'pool', target, 'moved_ms', NOW_MS, 'reason', reason)
redis.call('HINCRBY', KEYS[1], 'moves', 1)
if was_queued then rq_push(id, target, 'workers.jobs.generate', id) end
return 'moved'
