-- rate.lua - what a tenant may ask for in a minute: two buckets that fill again as time passes.
-- Needs names.lua.
--
-- A request takes one request out of one bucket, and the tokens that it may need at most out of the
-- other; at its end it gets back what it did not need. One that may need more than the whole bucket
-- takes a full one; what it needs beyond that is owed. Limits of 0 are none.
local MINUTE_MS, RATE_KEEP_S = 60000, 7200

local function rate_key(tenant) return P .. ':rate:' .. tenant end

-- Both buckets as they are now. Where there was no limit before, it is full.
local function buckets(key, requests_per_min, tokens_per_min)
  local known = redis.pcall('HMGET', key, 'requests', 'tokens', 'at_ms', 'requests_per_min',
    'tokens_per_min')
  if known.err then -- a key of another type than ours, which somebody put there
    redis.call('DEL', key)
    known = {}
  end
  local share = math.max(0, NOW_MS - tonumber(known[3] or 0)) / MINUTE_MS
  local function bucket(level, before, per_min)
    if not level or tonumber(before or 0) == 0 then return per_min end
    return math.min(per_min, tonumber(level) + share * per_min)
  end
  return bucket(known[1], known[4], requests_per_min), bucket(known[2], known[5], tokens_per_min)
end

local function keep_buckets(key, requests, tokens)
  redis.call('HSET', key, 'requests', requests, 'tokens', tokens, 'at_ms', NOW_MS)
  redis.call('EXPIRE', key, RATE_KEEP_S)
end

local function wait_ms(level, wanted, per_min)
  if per_min == 0 or level >= wanted then return 0 end
  return math.ceil((wanted - level) * MINUTE_MS / per_min)
end

-- Takes a request and its tokens: {0, tokens taken}, or {ms until it could, 0}: nothing was taken.
local function charge(tenant, requests_per_min, tokens_per_min, tokens)
  if requests_per_min == 0 and tokens_per_min == 0 then return { 0, 0 } end
  local key, taken = rate_key(tenant), math.min(tokens, tokens_per_min)
  local requests_left, tokens_left = buckets(key, requests_per_min, tokens_per_min)
  local wait = math.max(wait_ms(requests_left, 1, requests_per_min),
    wait_ms(tokens_left, taken, tokens_per_min))
  if wait > 0 then return { wait, 0 } end
  keep_buckets(key, math.max(0, requests_left - 1), tokens_left - taken)
  redis.call('HSET', key, 'requests_per_min', requests_per_min, 'tokens_per_min', tokens_per_min)
  return { 0, taken }
end

-- A request that was charged has ended, and needed so many tokens.
local function settle(tenant, charged, needed)
  local key = rate_key(tenant)
  local limits = redis.pcall('HMGET', key, 'requests_per_min', 'tokens_per_min')
  if not limits[2] then return end
  local per_min = tonumber(limits[2])
  local requests_left, tokens_left = buckets(key, tonumber(limits[1]), per_min)
  keep_buckets(key, requests_left, math.min(per_min, tokens_left + charged - needed))
end
