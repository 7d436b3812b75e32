-- charge.lua - a request that came by a stream takes its part of what its tenant may ask for.
--
-- One that the HTTP door accepted was charged there; one whose id is known will not run.
--
-- KEYS[1] hash of the job
-- ARGV[5] tenant   ARGV[6] requests_per_min   ARGV[7] tokens_per_min   ARGV[8] tokens at most
-- returns {ms until it may be taken, or 0; tokens that were taken, or -1: it is not to be charged}
-- include names
-- include rate
if redis.call('HEXISTS', KEYS[1], 'status') == 1 then return { 0, -1 } end
return charge(ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]))
