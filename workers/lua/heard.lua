-- heard.lua - a node of a fleet says that it lives; hears if it takes part, and who is gone.
--
-- KEYS[1] nodes by when they were heard   KEYS[2] their speeds   KEYS[3] what this one says
-- KEYS[4] what all nodes have in common   KEYS[5] tokens of the longest sequence each holds
-- ARGV[5] name   ARGV[6] instance: whose LOCKSTEP_HOME it is   ARGV[7] what it says, JSON
-- ARGV[8] lease_s   ARGV[9] identity: model, weights and arithmetic   ARGV[10] speed; "0": none yet
-- ARGV[11] "1": its own reasons keep it from taking part   ARGV[12] longest sequence; "0": not said
-- returns {"", "name" or "identity", the other's host or identity, all speeds together, names of
-- nodes that are gone}
--
-- A name belongs to the home that was heard under it last, until that is silent for a lease. The
-- identity is the one of the node that came first, until no node of it has been heard for a lease.
-- include names
local name, lease_s = ARGV[5], tonumber(ARGV[8])
local alive = NOW_S - lease_s

local function is_taken()
  local known = redis.call('HMGET', KEYS[3], 'instance', 'heard_s')
  return known[1] and known[1] ~= ARGV[6] and tonumber(known[2] or 0) > alive
end

-- Where the one is that has this name; "": that cannot be read.
local function host_of_other()
  local read, said = pcall(cjson.decode, redis.call('HGET', KEYS[3], 'said') or '')
  return read and type(said) == 'table' and said.host or ''
end

-- nil when it is ours, or nobody's.
local function other_identity()
  local known = redis.call('HMGET', KEYS[4], 'identity', 'heard_s')
  if known[1] and known[1] ~= ARGV[9] and tonumber(known[2] or 0) > alive then return known[1] end
end

local function fleet()
  local gone, total = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', alive), 0
  if #gone > 0 then
    redis.call('ZREM', KEYS[2], unpack(gone))
    redis.call('ZREM', KEYS[5], unpack(gone))
  end
  local speeds = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
  for i = 2, #speeds, 2 do total = total + tonumber(speeds[i]) end
  return tostring(total), gone
end

if is_taken() then return { 'name', host_of_other(), fleet() } end
local other = ARGV[11] ~= '1' and other_identity()
redis.call('ZADD', KEYS[1], NOW_S, name)
redis.call('HSET', KEYS[3], 'instance', ARGV[6], 'heard_s', NOW_S, 'said', ARGV[7],
  'identity', ARGV[9])
for i = 1, 4 do redis.call('EXPIRE', KEYS[i], KEEP_S) end
if other or ARGV[11] == '1' then
  redis.call('ZREM', KEYS[2], name)
  redis.call('ZREM', KEYS[5], name)
else
  redis.call('HSET', KEYS[4], 'identity', ARGV[9], 'heard_s', NOW_S)
  redis.call('EXPIRE', KEYS[4], KEEP_S)
  if tonumber(ARGV[10]) > 0 then
    redis.call('ZADD', KEYS[2], ARGV[10], name)
    redis.call('EXPIRE', KEYS[2], KEEP_S)
  end
  if tonumber(ARGV[12]) > 0 then
    redis.call('ZADD', KEYS[5], ARGV[12], name)
    redis.call('EXPIRE', KEYS[5], KEEP_S)
  end
end
return { other and 'identity' or '', other or '', fleet() }
