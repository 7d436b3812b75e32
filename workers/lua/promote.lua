-- promote.lua - a request gets another class: in its stream, in a queue, or while it runs.
--
-- KEYS[1] hash of the job   KEYS[2] channel of the pools
-- ARGV[5] request id   ARGV[6] the class   ARGV[7] group
-- ARGV[8], ARGV[9] its rank in a queue, counted from its arrival and from its own deadline: the
-- smaller of the two (workers/sla.py)   ARGV[10] ... all classes, most urgent first
-- returns {what, the class before}; what is "promoted", "demoted", "same", "ended" or "unknown"
-- (also of one that a client has put on a stream and no router has read)
-- include names
-- include rq_job
local id, sla, group = ARGV[5], ARGV[6], ARGV[7]
local known = redis.call('HMGET', KEYS[1], 'status', 'sla', 'pool', 'entry')
local status, was, pool, entry = known[1], known[2] or '', known[3], known[4]
if not status then return { 'unknown', '' } end
if TERMINAL[status] then return { 'ended', was } end
if was == sla then return { 'same', was } end

local function urgency(name)
  for i, other in ipairs(arguments(10)) do
    if other == name then return i end
  end
  return #ARGV
end

-- From its stream into the other one. A router that has read it finds that it is no longer its own.
-- When it came is kept: by its first entry.
local function change_streams()
  local old, new = P .. ':requests:' .. was, P .. ':requests:' .. sla
  local found = redis.call('XRANGE', old, entry, entry)[1]
  if not found then return end
  local fields, arrived = found[2], entry
  for i = 1, #fields, 2 do
    if fields[i] == 'arrived' then arrived = nil end
  end
  if arrived then
    fields[#fields + 1] = 'arrived'
    fields[#fields + 1] = arrived
  end
  local moved = redis.call('XADD', new, '*', unpack(fields))
  redis.call('EXPIRE', new, KEEP_S)
  redis.call('XACK', old, group, entry)
  redis.call('XDEL', old, entry)
  redis.call('HSET', KEYS[1], 'entry', moved)
end

local up = urgency(sla) < urgency(was)
local times = redis.call('HMGET', KEYS[1], 'arrival_ms', 'deadline_ms', 'session_wait_ms')
local rank = tonumber(times[1] or NOW_MS) + ARGV[8]
if times[2] then rank = math.min(rank, tonumber(times[2]) + ARGV[9]) end
rank = rank + tonumber(times[3] or 0) -- it counts as if it had come when its turn did (session.lua)
redis.call('HSET', KEYS[1], 'sla', sla, 'rank', string.format('%.0f', rank))
if status == 'accepted' then
  change_streams()
elseif status == 'queued' and redis.call('LREM', queue_key(pool), 0, id) > 0 then
  rq_insert(pool, id)
elseif status == 'running' then
  redis.call('PUBLISH', KEYS[2], 'promote ' .. id .. ' ' .. sla)
end
return { up and 'promoted' or 'demoted', was }
