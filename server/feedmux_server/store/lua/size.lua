-- KEYS[1]: the sizes of a tenant's definitions, by name, and their sum in the field ''.
-- ARGV: name, bytes (0: there is no definition), the most bytes of all definitions
local old = tonumber(redis.call('HGET', key, ARGV[1]) or '0')
local sum = tonumber(redis.call('HGET', key, '') or '0') - old + tonumber(ARGV[2])
if tonumber(ARGV[2]) > old and sum > tonumber(ARGV[3]) then return {'FULL'} end
if ARGV[2] == '0' then
  redis.call('HDEL', key, ARGV[1])
else
  redis.call('HSET', key, ARGV[1], ARGV[2])
end
redis.call('HSET', key, '', int(sum))
return {'OK'}
