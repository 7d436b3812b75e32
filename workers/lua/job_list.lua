-- job_list.lua - each tenant's jobs by their arrival, and when each one's record goes.
-- Needs names.lua.
--
-- A request never fails for its place in a list: of a key of another type nothing is written.
--
-- P:jobs:TENANT  ids by arrival ms      P:jobs  ids of ended ones by the second their hash expires

local function job_list_key(id)
  return P .. ':jobs:' .. (string.match(id, '^(%w+)%-%-') or 'default')
end

-- It is there from now on.
local function list_job(id, arrival_ms)
  redis.pcall('ZADD', job_list_key(id), arrival_ms, id)
  keep(job_list_key(id), math.max(KEEP_S, RESULT_TTL_S))
end

-- Its hash, which has just got keep_s to live, goes then (forget_jobs.lua).
local function job_goes(id, keep_s)
  redis.pcall('ZADD', P .. ':jobs', SECONDS + keep_s, id)
  keep(P .. ':jobs', math.max(KEEP_S, RESULT_TTL_S))
end
