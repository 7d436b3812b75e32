-- tell.lua - what a worker says of the requests that it runs: tokens, ends, or both, by the leases.
--
-- Of one request all of it is written, or none: its tokens, and if it ends its end entry, status,
-- RQ's records and webhook. A repeat changes nothing: Redis refuses an entry id that it has seen,
-- and who ended a request is known by its execution. Where something is missing before it,
-- the request goes back to the front of its queue: whoever claims it says the same again.
--
-- KEYS[1] RQ's hash of the worker
-- ARGV[5] queue name   ARGV[6] worker
-- ARGV[7] ... of each request: id, execution, how many tokens its journal must hold before; n, and
--   n times: entry id, width, that many arguments; then the width of the end event, 0: it goes on;
--   else RQ's result, encoded, the whole text, and that many arguments
-- returns the places, from 1, of those whose lease is lost, also just now; nothing was written for
-- them
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local queue, worker, i = ARGV[5], ARGV[6], 7
local ends = { successful_job_count = 0, failed_job_count = 0 }
local worked_ms = 0

-- What is said of the next one. tokens: of each {entry id, place of its fields, width}; first and
-- width: of its end, none when width is 0.
local function next_one()
  local one = { id = ARGV[i], execution = ARGV[i + 1], before = tonumber(ARGV[i + 2]), tokens = {} }
  local n = tonumber(ARGV[i + 3])
  i = i + 4
  for k = 1, n do
    local width = tonumber(ARGV[i + 1])
    one.tokens[k] = { ARGV[i], i + 2, width }
    i = i + 2 + width
  end
  one.width, one.first = tonumber(ARGV[i]), i + 1
  i = i + 1 + (one.width > 0 and one.width + 2 or 0)
  return one
end

-- The end event: field, value, ...
local function end_event(one)
  local flat = {}
  for k = 1, one.width do flat[k] = ARGV[one.first + 1 + k] end
  return flat
end

-- Whether something is missing before what is said, tokens or the prompt that was composed for it:
-- then the store has lost the end of its log while the worker lived on.
local function lacks_beginning(one)
  if one.before > 0 then return redis.call('XLEN', tokens_key(one.id)) < one.before end
  return #one.tokens > 0 and redis.call('HEXISTS', job_key(one.id), 'prompt_tokens') == 0
end

local function append(id, entry, first, width)
  local reply = redis.pcall('XADD', tokens_key(id), entry, unpack(ARGV, first, first + width - 1))
  local refused = type(reply) == 'table' and reply.err
  if refused and not string.find(refused, 'equal or smaller', 1, true) then error(refused) end
  if entry == '0-1' then redis.call('EXPIRE', tokens_key(id), KEEP_S) end
end

local function finish(one)
  local flat, id = end_event(one), one.id
  local known = redis.call('HMGET', job_key(id), 'started_ms', 'cached_tokens')
  local noted = tonumber(known[2] or '')
  for k = 1, #flat, 2 do -- what an earlier owner computed was not there before
    if flat[k] == 'cached_tokens' and noted then flat[k + 1] = math.min(flat[k + 1], noted) end
  end
  drop_lease(queue, id, one.execution, worker)
  end_request(id, flat, ARGV[one.first + 1])
  local good, results = flat[2] == 'finished', RQ .. ':results:' .. id
  redis.call('XADD', results, 'MAXLEN', 10, '*', 'type', good and 1 or 2, 'worker_name', worker,
    'return_value', ARGV[one.first], 'execution_id', one.execution, 'execution_ended_at', NOW_S)
  redis.call('EXPIRE', results, RESULT_TTL_S)
  local name = good and 'successful_job_count' or 'failed_job_count'
  ends[name] = ends[name] + 1
  worked_ms = worked_ms + NOW_MS - tonumber(known[1] or NOW_MS)
end

-- Without the lease: whether it is a repeat of an end that is written.
local function has_ended(one)
  local known = redis.call('HMGET', job_key(one.id), 'status', 'execution')
  return one.width > 0 and TERMINAL[known[1]] and known[2] == one.execution
end

-- Writes all of it; false: the lease is lost.
local function say(one)
  local id = one.id
  if not has_lease(queue, id, one.execution) then return has_ended(one) end
  if lacks_beginning(one) then
    put_back_all(queue, { { id, one.execution } }, nil, true)
    return false
  end
  for _, token in ipairs(one.tokens) do append(id, unpack(token)) end
  if one.width > 0 then
    finish(one)
  elseif redis.call('HGET', job_key(id), 'attempts') ~= '0' then
    -- it moves: what its workers died of before was something else
    redis.call('HSET', job_key(id), 'attempts', 0)
  end
  return true
end

-- RQ's counters of the worker, if it knows it.
local function count_work()
  if ends.successful_job_count + ends.failed_job_count == 0 then return end
  if redis.call('EXISTS', KEYS[1]) == 0 then return end
  for name, count in pairs(ends) do
    if count > 0 then redis.call('HINCRBY', KEYS[1], name, count) end
  end
  redis.call('HINCRBYFLOAT', KEYS[1], 'total_working_time', worked_ms / 1000)
end

local lost, number = {}, 0
while i <= #ARGV do
  number = number + 1
  if not say(next_one()) then lost[#lost + 1] = number end
end
count_work()
return lost
