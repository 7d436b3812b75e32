-- forget_jobs.lua - jobs whose hash has expired leave the lists.
--
-- ARGV[5] how many at most
-- returns how many were looked at
-- include names
-- include job_list
local most = tonumber(ARGV[5])
local due = redis.call('ZRANGEBYSCORE', P .. ':jobs', '-inf', SECONDS, 'LIMIT', 0, most)
for _, id in ipairs(due) do
  local left_s = redis.call('TTL', job_key(id))
  if left_s < 0 then
    redis.call('ZREM', P .. ':jobs', id)
    redis.call('ZREM', job_list_key(id), id)
  else
    job_goes(id, left_s + 1) -- its webhook is under way, or somebody keeps it
  end
end
return #due
