-- accept.lua - the HTTP door takes a request: it is accepted when this returns.
--
-- KEYS[1] stream of the class   KEYS[2] hash of the job
-- ARGV[5] sla   ARGV[6] tenant   ARGV[7] body: msgpack map of the client's fields
-- ARGV[8] ... metadata and webhook, as pairs: needed if it ends before it is routed
-- returns {is_new, entry id, status}; of an id that is known, what became of it
-- include names
local known = redis.call('HMGET', KEYS[2], 'status', 'entry')
if known[1] then return { 0, known[2] or '', known[1] } end
local entry = redis.call('XADD', KEYS[1], '*', 'm', ARGV[7])
redis.call('HSET', KEYS[2], 'status', 'accepted', 'sla', ARGV[5], 'tenant', ARGV[6],
  'entry', entry, 'arrival_ms', NOW_MS, unpack(arguments(8)))
redis.call('EXPIRE', KEYS[2], KEEP_S)
redis.call('EXPIRE', KEYS[1], KEEP_S)
return { 1, entry, 'accepted' }
