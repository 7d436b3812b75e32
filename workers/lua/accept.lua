-- accept.lua - the HTTP door takes a request: it is accepted when this returns.
--
-- KEYS[1] stream of the class   KEYS[2] hash of the job
-- ARGV[5] sla   ARGV[6] tenant   ARGV[7] body: msgpack map of the client's fields
-- ARGV[8] requests_per_min   ARGV[9] tokens_per_min   ARGV[10] tokens that it may need at most
-- ARGV[11] name of the API key that asks, or ""
-- ARGV[12] requests_per_min, ARGV[13] tokens_per_min,
-- ARGV[14] at once: what that key may ask for
-- ARGV[15] ... metadata and webhook, as pairs: needed if it ends before it is routed
-- returns {is_new, entry id, status, ms}; of an id that is known, what became of it; of one that is
-- more than may be asked for, {0, "", why, ms until it may be taken}: "rate_limited" its tenant,
-- "key_limited" its key, "key_busy" its key at once
-- include names
-- include rate
-- include key_limits
-- include job_list
local known = redis.call('HMGET', KEYS[2], 'status', 'entry')
if known[1] then return { 0, known[2] or '', known[1], 0 } end
local id, key, tokens = string.sub(KEYS[2], #job_key('') + 1), ARGV[11], tonumber(ARGV[10])
local of_key =
  charge_key(key, id, tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14]), tokens)
if of_key[1] > 0 then return { 0, '', of_key[3], of_key[1] } end
local charged = charge(ARGV[6], tonumber(ARGV[8]), tonumber(ARGV[9]), tokens)
if charged[1] > 0 then
  uncharge_key(key, id, of_key[2])
  return { 0, '', 'rate_limited', charged[1] }
end
local entry = redis.call('XADD', KEYS[1], '*', 'm', ARGV[7])
redis.call('HSET', KEYS[2], 'status', 'accepted', 'sla', ARGV[5], 'tenant', ARGV[6],
  'entry', entry, 'arrival_ms', NOW_MS, unpack(arguments(15)))
if key ~= '' then redis.call('HSET', KEYS[2], 'api_key', key, 'key_charged_tokens', of_key[2]) end
if charged[2] > 0 then redis.call('HSET', KEYS[2], 'charged_tokens', charged[2]) end
redis.call('EXPIRE', KEYS[2], KEEP_S)
redis.call('EXPIRE', KEYS[1], KEEP_S)
list_job(id, NOW_MS)
return { 1, entry, 'accepted', 0 }
