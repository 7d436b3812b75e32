-- recover.lua - a restarted worker puts back at once what its dead predecessor of that name held.
--
-- KEYS[1] RQ's set of the worker's executions
-- ARGV[5] queue name   ARGV[6] max_attempts
-- returns the ids that were put back
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local items = {}
for _, member in ipairs(redis.call('SMEMBERS', KEYS[1])) do items[#items + 1] = split(member) end
local ids = put_back_all(ARGV[5], items, tonumber(ARGV[6]), false)
redis.call('DEL', KEYS[1])
return ids
