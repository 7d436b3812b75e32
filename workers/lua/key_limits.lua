-- key_limits.lua - what an API key may ask for: buckets as its tenant has them, how many at once.
-- Needs names.lua, rate.lua.
--
-- P:held:KEY  ids of its requests that were taken and have not ended, by when they were taken
local LOOK_MS, FORGOTTEN_AT_ONCE = 1000, 16

local function held_key(key) return P .. ':held:' .. key end

-- Whether one more may be under way. What is gone without an end is forgotten when it is in the
-- way.
local function has_place(key, at_once)
  if at_once == 0 or redis.call('ZCARD', held_key(key)) < at_once then return true end
  for _, id in ipairs(redis.call('ZRANGE', held_key(key), 0, FORGOTTEN_AT_ONCE - 1)) do
    local status = redis.call('HGET', job_key(id), 'status')
    if not status or TERMINAL[status] then redis.call('ZREM', held_key(key), id) end
  end
  return redis.call('ZCARD', held_key(key)) < at_once
end

-- As charge, of a key: {0, tokens taken}, or {ms until it could, 0, why not}.
local function charge_key(key, id, requests_per_min, tokens_per_min, at_once, tokens)
  if key == '' then return { 0, 0 } end
  if not has_place(key, at_once) then return { LOOK_MS, 0, 'key_busy' } end
  local charged = charge('key:' .. key, requests_per_min, tokens_per_min, tokens)
  if charged[1] > 0 then return { charged[1], 0, 'key_limited' } end
  if at_once > 0 then
    redis.call('ZADD', held_key(key), NOW_MS, id)
    redis.call('EXPIRE', held_key(key), KEEP_S)
  end
  return charged
end

-- Its request was not taken after all: it is as if it had not asked.
local function uncharge_key(key, id, charged)
  if key == '' then return end
  redis.call('ZREM', held_key(key), id)
  if redis.call('HEXISTS', rate_key('key:' .. key), 'requests') == 0 then return end
  redis.call('HINCRBYFLOAT', rate_key('key:' .. key), 'requests', 1)
  redis.call('HINCRBYFLOAT', rate_key('key:' .. key), 'tokens', charged)
end

-- A request that a key asked for has ended, and needed so many tokens.
local function leave_key(key, id, charged, needed)
  redis.call('ZREM', held_key(key), id)
  if charged then settle('key:' .. key, tonumber(charged), needed) end
end
