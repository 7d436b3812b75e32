-- accept.lua - the HTTP door takes a request: it is accepted when this returns.
--
-- KEYS[1] stream of the class   KEYS[2] hash of the job
-- ARGV[5] sla   ARGV[6] tenant   ARGV[7] body: msgpack map of the client's fields
-- ARGV[8] requests_per_min   ARGV[9] tokens_per_min   ARGV[10] tokens that it may need at most
-- ARGV[11] ... metadata and webhook, as pairs: needed if it ends before it is routed
-- returns {is_new, entry id, status, ms}; of an id that is known, what became of it; of one that is
-- more than its tenant may ask for, {0, "", "rate_limited", ms until it may be taken}
-- include names
-- include rate
-- include job_list
local known = redis.call('HMGET', KEYS[2], 'status', 'entry')
if known[1] then return { 0, known[2] or '', known[1], 0 } end
local charged = charge(ARGV[6], tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]))
if charged[1] > 0 then return { 0, '', 'rate_limited', charged[1] } end
local entry = redis.call('XADD', KEYS[1], '*', 'm', ARGV[7])
redis.call('HSET', KEYS[2], 'status', 'accepted', 'sla', ARGV[5], 'tenant', ARGV[6],
  'entry', entry, 'arrival_ms', NOW_MS, unpack(arguments(11)))
if charged[2] > 0 then redis.call('HSET', KEYS[2], 'charged_tokens', charged[2]) end
redis.call('EXPIRE', KEYS[2], KEEP_S)
redis.call('EXPIRE', KEYS[1], KEEP_S)
list_job(string.sub(KEYS[2], #job_key('') + 1), NOW_MS)
return { 1, entry, 'accepted', 0 }
