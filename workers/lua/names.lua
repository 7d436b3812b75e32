-- names.lua - what every script begins with: common arguments, the server's clock, names of keys.
--
-- ARGV[1] key prefix
-- ARGV[2] RQ's key prefix
-- ARGV[3] keep_s: how long unfinished work is kept that nobody touches
-- ARGV[4] result_ttl_s: how long results are kept
-- A script's own arguments begin at ARGV[5].
local P, RQ, KEEP_S, RESULT_TTL_S = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local TIME = redis.call('TIME')
local SECONDS, MICROS = tonumber(TIME[1]), tonumber(TIME[2])
local NOW_S = SECONDS + MICROS / 1e6
local NOW_MS = SECONDS * 1000 + math.floor(MICROS / 1000)

local TERMINAL = { finished = true, failed = true, cancelled = true, expired = true }

local function job_key(id) return P .. ':job:' .. id end
local function tokens_key(id) return P .. ':tokens:' .. id end
local function queue_key(queue) return RQ .. ':queue:' .. queue end
local function rq_key(id) return RQ .. ':job:' .. id end

-- ARGV from index `first` on, as a list.
local function arguments(first)
  local list = {}
  for i = first, #ARGV do list[#list + 1] = ARGV[i] end
  return list
end

-- A key that many of a script's requests share, and that none of them deletes: it lives on.
local KEPT = {}
local function keep(key, seconds)
  if KEPT[key] then return end
  KEPT[key] = true
  redis.pcall('EXPIRE', key, seconds or KEEP_S)
end

-- Wake one worker that waits for this queue. The bell is a list that holds one token at most.
local function ring(queue)
  local bell = P .. ':bell:' .. queue
  if redis.call('LLEN', bell) == 0 then
    redis.call('RPUSH', bell, '1')
    redis.call('EXPIRE', bell, 60)
  end
end
