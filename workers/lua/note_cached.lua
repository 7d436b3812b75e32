-- note_cached.lua - how much of a prompt nobody has computed for its request, as far as is known.
--
-- KEYS[1] hash of the job
-- ARGV[5] tokens
-- include names
local known = redis.call('HMGET', KEYS[1], 'status', 'cached_tokens')
if not known[1] or TERMINAL[known[1]] then return end
if not known[2] or tonumber(ARGV[5]) < tonumber(known[2]) then
  redis.call('HSET', KEYS[1], 'cached_tokens', ARGV[5])
end
