-- promises.lua - whether a request that ended had what its class promises; counted for each class.
-- Needs names.lua.
--
-- The promises lie in P:sla, written by routers: CLASS to JSON {ttft_ms, tpot_ms, deadline_ms}.
-- What the client ended itself, or had refused for its own fault, counts neither way. A count is
-- never worth an end: keys that hold something else, and promises nobody can read, count nothing.
local CLIENTS_FAULT = {
  bad_request = true, unsupported = true, model_not_found = true, context_length_exceeded = true,
  too_large = true, request_too_large = true, undecodable = true, session_mismatch = true,
  rate_limited = true
}

local function over(value, limit)
  return value and type(limit) == 'number' and tonumber(value) > limit
end

-- "kept", or what was not. job: the fields of an ended one.
local function verdict(job)
  local said = redis.pcall('HGET', P .. ':sla', job.sla)
  local is_read, promise = pcall(cjson.decode, said)
  if not is_read or type(promise) ~= 'table' then promise = {} end
  if over(job.ttft_ms, promise.ttft_ms) then return 'ttft' end
  if over(job.tpot_ms, promise.tpot_ms) then return 'tpot' end
  local age_ms = NOW_MS - tonumber(job.arrival_ms or NOW_MS)
  if over(age_ms, promise.deadline_ms) then return 'deadline' end
  return 'kept'
end

local function count(key, field, number)
  redis.pcall('HINCRBY', key, field, number)
  keep(key)
end

local function count_promise(job)
  local what, key = job.code or job.status, P .. ':promises'
  if job.status == 'cancelled' or (job.status == 'failed' and CLIENTS_FAULT[what]) then return end
  if job.status == 'finished' then what = verdict(job) end
  count(key, job.sla .. ' ' .. what, 1)
  if what == 'kept' then count(key, job.sla .. ' tokens', job.output_tokens or 0) end
end
